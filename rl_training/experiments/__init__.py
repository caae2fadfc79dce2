"""Many runs: manifests, seeds, reports."""
