"""Drawing as plain data: rows of ``(text, style name)`` pairs, made by pure functions and testable
as text.
"""
