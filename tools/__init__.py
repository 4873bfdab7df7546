"""Tools for working on metta; none of them is part of the library."""
