"""Parts for sketchfed: the codec `fold`, the algorithm `fed_adagrad` and the data set `rings`."""
