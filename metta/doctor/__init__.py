"""Examining environments, networks and losses before they are trained: findings with cause and cure."""

from metta.doctor.doctor import check_env
from metta.doctor.report import Finding, Report

__all__ = ["Finding", "Report", "check_env"]
