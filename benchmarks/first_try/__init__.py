"""A new environment, nothing but its id: metta's recipes beside the defaults of Stable-Baselines3."""
