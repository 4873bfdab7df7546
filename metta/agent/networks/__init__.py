"""The networks that metta builds itself."""
