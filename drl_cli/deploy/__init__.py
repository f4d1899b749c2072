"""What acts with a trained policy: loading it, exporting it, and recording how it plays."""
