package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/sonde-mesh/sonde/cmd/sondectl/migration"
)

// addObjects adds an object, or the items of any List, to a cluster, and returns an error for each that cannot be read.
func addObjects(cluster *migration.Cluster, place string, o jsonObject) []error {
	apiVersion, _ := o["apiVersion"].(string)
	kind, _ := o["kind"].(string)
	items, isList := o["items"].([]any)
	of, named := strings.CutSuffix(kind, "List")
	if !isList || !named {
		if err := addObject(cluster, place, o); err != nil {
			return []error{err}
		}
		return nil
	}
	var errs []error
	for i, item := range items {
		place := fmt.Sprintf("%s, item %d", place, i+1)
		object, ok := item.(jsonObject)
		if !ok {
			errs = append(errs, withPlace(place, errors.New("must be an object of Kubernetes")))
			continue
		}
		if _, has := object["kind"]; !has && of != "" {
			object["apiVersion"], object["kind"] = apiVersion, of
		}
		errs = append(errs, addObjects(cluster, place, object)...)
	}
	return errs
}

// addObject adds an object. A Dataplane may be in the form of files, which has a type and no kind.
func addObject(cluster *migration.Cluster, place string, o jsonObject) error {
	add := migration.Object{}
	add.APIVersion, _ = o["apiVersion"].(string)
	add.Kind, _ = o["kind"].(string)
	if ofMesh, _ := o["type"].(string); add.Kind == "" && ofMesh != "" {
		add.Kind = ofMesh
	} else {
		pods, err := podsIn(place, o)
		if err != nil {
			return err
		}
		if len(pods) > 0 {
			place, add.Pod = pods[0].place, pods[0].json
		} else {
			place += ", " + cmp.Or(add.Kind, "object")
		}
	}
	body, err := json.Marshal(o)
	if err == nil {
		add.JSON = body
		err = cluster.Add(add)
	}
	if err != nil {
		return withPlace(place, err)
	}
	return nil
}
