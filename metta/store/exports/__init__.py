"""Policies for other programs: ONNX and torch.export."""
