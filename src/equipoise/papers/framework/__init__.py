"""What the claims and experiments of every paper need: judged, run, stored and shown."""
