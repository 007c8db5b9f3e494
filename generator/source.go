package generator

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// source says where Envoy gets the parts of a resource that change often.
type source uint8

const (
	// dynamic means secrets from the agent's files, endpoints and routes over ADS.
	dynamic source = iota
	// static means that all of it is in one static configuration.
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
