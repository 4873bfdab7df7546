"""One module for each command, named like the command."""
