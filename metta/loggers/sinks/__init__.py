"""Where rows of metrics go: console, CSV, TensorBoard, Weights & Biases."""
