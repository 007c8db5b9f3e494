package generator

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// source is where Envoy gets the frequently changing parts of a resource.
type source uint8

const (
	// dynamic means secrets from the agent's files, endpoints and routes over ADS.
	dynamic source = iota
	// static means that everything is in one static configuration.
	static
)

func adsConfigSource() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
}

func fileConfigSource(path string) *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{
			PathConfigSource: &corev3.PathConfigSource{Path: path},
		},
	}
}
