"""Where records go: console, CSV, TensorBoard, Weights & Biases."""
