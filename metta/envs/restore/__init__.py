"""Bringing environments back: trying how, reading their state, repeating episodes."""
