package freeze

import "fmt"

// Limits of another replica's verdict.
const (
	maxEpoch  = 1 << 53
	maxGroups = 1000 // a mesh has a handful
	maxName   = 63   // of a label's value
)

// Validate returns an error if no leader can have written the verdict.
func (v *Verdict) Validate() error {
	if v.Epoch < 0 || v.Epoch > maxEpoch || v.Count < 0 {
		return fmt.Errorf("epoch: %d, %d: must be from 0 to %d, with a count of 0 or more", v.Epoch, v.Count, int64(maxEpoch))
	}
	for field, n := range map[string]int{"lost": len(v.Lost), "zones": len(v.Zones), "orders": len(v.Orders)} {
		if n > maxGroups {
			return fmt.Errorf("%s: %d: must be at most %d", field, n, maxGroups)
		}
	}
	for _, l := range v.Lost {
		if err := l.validate(); err != nil {
			return err
		}
	}
	for _, z := range v.Zones {
		if err := z.validate(); err != nil {
			return err
		}
	}
	for _, o := range v.Orders {
		if o.Zone == "" || len(o.Zone) > maxName {
			return fmt.Errorf("orders: zone %.100q: must have from 1 to %d bytes", o.Zone, maxName)
		}
	}
	return nil
}

func (l Loss) validate() error {
	if l.Kind != Nodes && l.Kind != Proxies || len(l.Zone) > maxName || len(l.Cause) > maxName {
		return fmt.Errorf(
			"lost: kind %.100q, zone %.100q, cause %.100q: the kind must be %s or %s, zone and cause have at most %d bytes",
			l.Kind, l.Zone, l.Cause, Nodes, Proxies, maxName)
	}
	return nil
}

func (z Zone) validate() error {
	if z.By != Nodes && z.By != Operator || len(z.Name) > maxName || z.Kept < 1 || z.Kept > All {
		return fmt.Errorf("zones: %.100q, by %.100q, kept %d: must be by %s or %s, from 1 to %d, with a name of at most %d bytes", z.Name, z.By, z.Kept, Nodes, Operator, All, maxName)
	}
	return nil
}
