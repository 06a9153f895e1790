"""What coding agents ask of gputop: short answers about runs and scripts, over MCP."""
