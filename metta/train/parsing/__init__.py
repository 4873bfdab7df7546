"""From text to typed settings: schema, values, documentation and problems."""
