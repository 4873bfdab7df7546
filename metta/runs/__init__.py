"""Reading run folders: summaries, details, comparisons, inspection."""
