"""Action spaces as pure functions of distribution parameters and noise."""
