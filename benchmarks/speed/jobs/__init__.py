"""What metta does in a benchmark: programs that are told by JSON and print how far they are."""
