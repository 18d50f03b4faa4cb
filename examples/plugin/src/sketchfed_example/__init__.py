"""Parts for sketchfed: `stripes`, `fold`, `fed_adagrad`, `near_mean` and `rings`."""
