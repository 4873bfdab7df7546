"""Environments of many agents: agents as rows, groups of agents, PettingZoo, mettagrid."""
