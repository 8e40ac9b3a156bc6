"""Every key of the configuration: what its values may be, in which unit, and when it has an effect."""
