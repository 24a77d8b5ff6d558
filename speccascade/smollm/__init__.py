"""A real pretrained model, SmolLM2-135M-Instruct, beside its fast decoders."""
