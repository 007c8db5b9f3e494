import {Detail, open, opened} from './detail';
import {Filter, distinct, matches} from './filter';
import {Mark, levels} from './marks';
import {content} from './source';
import {Table} from './table';
import {Ago, Until} from './time';
import type {Proxy} from './types';

const idOf = (p: Proxy) => `${p.mesh} ${p.name}`;

const envoyOf = (p: Proxy) => (!p.envoy ? 'not connected' : p.nacks ? `refuses ${p.nacks.length}` : `${p.synced}/${p.types} acknowledged`);

// stateOf is what is wrong in few words, and since when.
function stateOf(p: Proxy): [string, string | undefined] {
  if (p.level === 'good' || p.agent !== 'connected') return [p.agent, p.since];
  if (p.nacks) return [envoyOf(p), p.nacks[0]!.at];
  if (!p.envoy) return ['Envoy not connected', undefined];
  return ['needs a look', undefined];
}

export function Proxies() {
  const all = content('proxies');
  if (!all) return null;
  const shown = all.rows
    .filter((p) => matches(`${idOf(p)} ${(p.notes ?? []).join(' ')} ${(p.nacks ?? []).map((n) => `${n.resource} ${n.reason}`).join(' ')}`, {mesh: p.mesh, state: p.agent}))
    .sort((a, b) => levels.indexOf(a.level) - levels.indexOf(b.level) || idOf(a).localeCompare(idOf(b)));
  const detail = all.rows.find((p) => idOf(p) === opened());
  return (
    <>
      <Filter
        choices={[
          {name: 'state', title: 'Agent', values: distinct(all.rows.map((p) => p.agent))},
          {name: 'mesh', title: 'Mesh', values: distinct(all.rows.map((p) => p.mesh))},
        ]}
        shown={shown.length}
        of={all.rows.length}
      />
      {all.leftOut && <p class="notice warn">{all.leftOut} more are not shown: the control plane sends at most 5000.</p>}
      <Table
        caption="Proxies, those with what is wrong first"
        rows={shown}
        id={idOf}
        columns={[
          {title: 'Proxy', class: 'name', cell: (p) => <span title={`mesh ${p.mesh}`}>{p.name}</span>},
          {
            title: 'State',
            cell: (p) => {
              const [words, since] = stateOf(p);
              return (
                <button type="button" class="cell" onClick={() => open(idOf(p))}>
                  <Mark level={p.level}>{words}</Mark>{' '}
                  <small>
                    <Ago at={since} />
                  </small>
                  <span class="hidden">, proxy {p.name}</span>
                </button>
              );
            },
          },
          {title: 'Envoy', cell: envoyOf},
          {title: 'Certificate', class: 'extra', cell: (p) => <Until at={p.certificate} />},
          {title: 'Note', class: 'wide', cell: (p) => <span title={p.notes?.join('\n')}>{p.notes?.[0]}</span>},
        ]}
      />
      {detail && (
        <Detail title={`Proxy ${detail.name}`}>
          {(detail.notes ?? []).map((n) => (
            <p key={n} class="reason">
              {n}
            </p>
          ))}
          <dl>
            <dt>Agent</dt>
            <dd>
              {detail.agent} <Ago at={detail.since} />
              {detail.version && `, version ${detail.version}`}
            </dd>
            <dt>Envoy</dt>
            <dd>
              {detail.envoy ? 'connected' : 'not connected'}
              {detail.envoyVersion && `, version ${detail.envoyVersion}`}
            </dd>
            <dt>Acknowledged</dt>
            <dd>
              {detail.synced} of {detail.types} types of resources
            </dd>
            {detail.certificate && (
              <>
                <dt>Certificate ends in</dt>
                <dd>
                  <Until at={detail.certificate} />
                </dd>
              </>
            )}
          </dl>
          {(detail.nacks ?? []).map((n) => (
            <section key={`${n.kind} ${n.resource}`}>
              <h3>
                Refused: {n.kind} {n.resource}
              </h3>
              <p class="reason">{n.reason}</p>
              {n.at && (
                <p>
                  for <Ago at={n.at} />; Envoy keeps the previous version
                </p>
              )}
            </section>
          ))}
        </Detail>
      )}
    </>
  );
}
