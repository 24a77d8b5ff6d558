"""Works out what a run will need and send, before there are any devices."""
