"""Updates as machine code: traced from the eager update, compiled, cached and checked."""
