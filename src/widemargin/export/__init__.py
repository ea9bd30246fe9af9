"""A trained model as an ONNX file or a hub folder, and its embeddings as files."""
