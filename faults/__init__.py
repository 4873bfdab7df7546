"""Fault campaigns: metta under kills, full disks, dead workers, hostile files (python -m faults.run)."""
