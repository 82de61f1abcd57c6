package commands

// Fingerprint is the fingerprint under which a command's key is remembered.
func (r Request) Fingerprint() ([]byte, error) { return r.fingerprint() }
