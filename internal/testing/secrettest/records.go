package secrettest

import "context"

// Records is a Memory as identity.Records.
type Records struct{ *Memory }

// Read implements identity.Records.
func (r Records) Read(name string) ([]byte, error) {
	data, _, err := r.Memory.Read(context.Background(), name)
	return data, err
}

// Write implements identity.Records.
func (r Records) Write(name string, data []byte) error {
	_, err := r.write(name, data, func(file, bool) error { return nil })
	return err
}

// Remove implements identity.Records.
func (r Records) Remove(name string) error {
	r.Put(name, nil)
	return nil
}

// List implements identity.Records.
func (r Records) List(directory string) ([]string, error) {
	return r.Memory.List(context.Background(), directory)
}
