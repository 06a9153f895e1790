"""How much GPU memory a training needs: traced, from shipped profiles, or by formula."""
