"""Worker processes: start, command, watch, replace and end them."""
