import {Detail, open, opened} from './detail';
import {Filter, distinct, matches} from './filter';
import {Mark, levels} from './marks';
import {content} from './source';
import {Table} from './table';
import {Ago} from './time';
import type {Service} from './types';

const idOf = (s: Service) => `${s.mesh} ${s.name}`;

function words(s: Service): string {
  if (s.total === 0) return 'no endpoint';
  if (s.serving === 0) return 'no traffic';
  if (s.ready < s.total) return 'some are out';
  if (s.frozen) return 'ready, some frozen';
  return s.level === 'good' ? 'ready' : s.unchecked ? 'ready, not checked' : 'ready, agent lost';
}

// whyOf is why the first endpoint gets no traffic.
const whyOf = (s: Service) => (s.endpoints ?? []).find((e) => !e.traffic)?.reason ?? s.reasons?.[0];

export function Services() {
  const all = content('services');
  if (!all) return null;
  const shown = all.rows
    .filter((s) => matches(`${idOf(s)} ${(s.endpoints ?? []).map((e) => `${e.address} ${e.dataplane ?? ''} ${e.reason ?? ''}`).join(' ')}`, {mesh: s.mesh, state: words(s)}))
    .sort((a, b) => levels.indexOf(a.level) - levels.indexOf(b.level) || idOf(a).localeCompare(idOf(b)));
  const detail = all.rows.find((s) => idOf(s) === opened());
  return (
    <>
      <Filter
        choices={[
          {name: 'state', title: 'State', values: distinct(all.rows.map(words))},
          {name: 'mesh', title: 'Mesh', values: distinct(all.rows.map((s) => s.mesh))},
        ]}
        shown={shown.length}
        of={all.rows.length}
      />
      {all.leftOut && <p class="notice warn">{all.leftOut} more are not shown: the control plane sends at most 5000.</p>}
      <Table
        caption="Services, those with what is wrong first"
        rows={shown}
        id={idOf}
        columns={[
          {title: 'Service', class: 'name', cell: (s) => <span title={`mesh ${s.mesh}`}>{s.name}</span>},
          {
            title: 'State',
            cell: (s) => (
              <button type="button" class="cell" onClick={() => open(idOf(s))}>
                <Mark level={s.level}>{words(s)}</Mark>{' '}
                <small>
                  <Ago at={s.without} />
                </small>
                <span class="hidden">, endpoints of {s.name}</span>
              </button>
            ),
          },
          {title: 'Ready', cell: (s) => `${s.ready}/${s.total}`},
          {title: 'Why', class: 'wide', cell: (s) => whyOf(s)},
          {title: 'Protocol', class: 'extra', cell: (s) => s.protocol},
        ]}
      />
      {detail && (
        <Detail title={`Endpoints of ${detail.name}`}>
          {(detail.reasons ?? []).map((r) => (
            <p key={r} class="reason">
              {r}
            </p>
          ))}
          <ul class="findings">
            {(detail.endpoints ?? []).map((e) => (
              <li key={e.address}>
                <h3>
                  {e.address} {e.dataplane && <small>{e.dataplane}</small>}
                </h3>
                <p>
                  <Mark level={e.level}>
                    {e.health}
                    {e.unchecked && ', nothing checks its application'}
                  </Mark>
                </p>
                <p>
                  {e.traffic ? 'It gets traffic' : 'It gets no traffic'}
                  {!e.sidecar && ', has no sidecar'}
                  {e.node && `, is on node ${e.node}`}.
                </p>
                {e.reason && <p class="reason">{e.reason}</p>}
                {e.lost && (
                  <p class="reason">
                    Its agent is lost for <Ago at={e.lost} />: the endpoint stays.
                  </p>
                )}
              </li>
            ))}
          </ul>
          {detail.leftOut && <p>{detail.leftOut} more</p>}
        </Detail>
      )}
    </>
  );
}
