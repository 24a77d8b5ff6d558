"""A real pretrained model, SmolLM2-135M-Instruct, decoded in several ways."""
