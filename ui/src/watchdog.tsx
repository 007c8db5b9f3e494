import {Detail, open, opened} from './detail';
import {Filter, distinct, matches} from './filter';
import {Mark} from './marks';
import {content} from './source';
import {Table} from './table';
import {Ago} from './time';
import type {Dependant, Ref, Watched, Zone} from './types';

const idOf = (w: Watched) => `${w.namespace}/${w.name}`;
const nameOf = (r: Ref) => `${r.kind}/${r.name}`;
const words = (v: {verdict?: string; cause?: string}) => (v.verdict || 'not judged') + (v.cause ? ` (${v.cause})` : '');
const textOf = (w: Watched) =>
  `${idOf(w)} ${w.cause ?? ''} ${(w.nodes ?? []).map((z) => z.zone ?? '').join(' ')} ${(w.dependants ?? []).map((d) => nameOf(d.ref)).join(' ')}`;

// zonesOf says which zones are not seen while others are.
function zonesOf(w: Watched): string {
  const all = (w.nodes ?? []).filter((z) => z.zone && z.verdict !== 'seen').map((z) => z.zone);
  return w.verdict === 'seen' && all.length > 0 ? `, but not ${all[0]}${all.length > 1 ? ` and ${all.length - 1} more` : ''}` : '';
}

// Watchdog has its rows in the order of sondectl: the worst first.
export function Watchdog() {
  const all = content('watchdog');
  if (!all) return null;
  if (all.rows.length === 0) return <p>No WatchedCluster exists: sonde-watchdog watches nothing.</p>;
  const shown = all.rows.filter((w) => matches(textOf(w), {namespace: w.namespace, state: w.verdict || 'not judged'}));
  const detail = all.rows.find((w) => idOf(w) === opened());
  return (
    <>
      <p>What sonde-watchdog has written last: it does not say whether sonde-watchdog runs.</p>
      <Filter
        choices={[
          {name: 'state', title: 'Nodes', values: distinct(all.rows.map((w) => w.verdict || 'not judged'))},
          {name: 'namespace', title: 'Namespace', values: distinct(all.rows.map((w) => w.namespace))},
        ]}
        shown={shown.length}
        of={all.rows.length}
      />
      {all.more && <p class="notice warn">More are not shown: sondectl watchdog status -A lists all clusters.</p>}
      <Table
        caption="Clusters that sonde-watchdog watches, those with what is wrong first"
        rows={shown}
        id={idOf}
        columns={[
          {title: 'Cluster', class: 'name', cell: (w) => <span title={idOf(w)}>{idOf(w)}</span>},
          {
            title: 'Nodes',
            cell: (w) => (
              <button type="button" class="cell" onClick={() => open(idOf(w))}>
                <Mark level={w.level}>
                  {words(w)}
                  {zonesOf(w)}
                  {w.paused && ', paused'}
                </Mark>{' '}
                <small>
                  <Ago at={w.since} />
                </small>
                <span class="hidden">, cluster {idOf(w)}</span>
              </button>
            ),
          },
          {title: 'Scaled down', cell: (w) => `${w.scaled ?? 0}/${w.total}`},
          {title: 'Note', class: 'wide', cell: (w) => w.refused || w.failed || w.why},
        ]}
      />
      {detail && <WatchedDetail of={detail} />}
    </>
  );
}

function WatchedDetail({of}: {of: Watched}) {
  return (
    <Detail title={`Cluster ${idOf(of)}`}>
      <p>{of.why}</p>
      {of.refused && <p class="reason">The object is invalid: {of.refused}</p>}
      {of.failed && <p class="reason">The last probe failed: {of.failed}</p>}
      <dl>
        {of.lostSince && (
          <>
            <dt>Lost for</dt>
            <dd>
              <Ago at={of.lostSince} />
            </dd>
          </>
        )}
        <dt>Next</dt>
        <dd>{of.next}</dd>
      </dl>
      {of.nodes && <h3>Nodes</h3>}
      <ul class="findings">
        {(of.nodes ?? []).map((z) => (
          <li key={z.zone}>
            <ZoneLine of={z} />
          </li>
        ))}
      </ul>
      <h3>Dependants</h3>
      {of.unread && <p class="reason">{of.total} were not read: too many are to be read at once.</p>}
      <ul class="findings">
        {(of.dependants ?? []).map((d) => (
          <li key={`${d.ref.apiVersion} ${nameOf(d.ref)}`}>
            <DependantLine of={d} />
          </li>
        ))}
      </ul>
      <p class="do">
        <code>{of.do}</code>
      </p>
    </Detail>
  );
}

function ZoneLine({of}: {of: Zone}) {
  return (
    <p>
      <b>{of.zone ? `Zone ${of.zone}` : 'All'}</b>: {words(of)}, {of.silent} of {of.nodes} silent
      {of.unheard > 0 && `, ${of.unheard} unheard`}
    </p>
  );
}

function DependantLine({of}: {of: Dependant}) {
  return (
    <>
      <p>
        <b>{nameOf(of.ref)}</b>: {of.replicas === undefined ? 'replicas unknown' : `${of.replicas} replicas`}
        {of.step && `, ${of.step}, ${of.before ?? 0} before`}, next: {of.next}
      </p>
      {of.waitsFor && <p>Waits for {of.waitsFor.map(nameOf).join(', ')}</p>}
      {of.note && <p class="reason">{of.note}</p>}
    </>
  );
}
