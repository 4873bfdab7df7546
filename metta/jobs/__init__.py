"""Jobs in a database, done once by workers anywhere: evaluations and training runs."""
