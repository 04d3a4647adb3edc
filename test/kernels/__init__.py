"""Every op against a formula written here, in float64, without the package's own maths."""
