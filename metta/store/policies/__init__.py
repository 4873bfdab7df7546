"""Policy files: weights and manifest, and policies rebuilt from them."""
