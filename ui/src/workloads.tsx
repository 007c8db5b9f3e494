import {useMemo} from 'preact/hooks';
import {Changes} from './changes';
import {Detail, open, opened} from './detail';
import {Filter, distinct, matches} from './filter';
import {StateMark, states} from './marks';
import {ProblemList} from './problems';
import {param} from './route';
import {content} from './source';
import {Table} from './table';
import {Ago} from './time';
import {kinds, type Cell, type Kind, type State, type Workload} from './types';

const nameOf = (w: Workload) => (w.namespace ? `${w.namespace}/${w.name}` : w.name);
const idOf = (w: Workload) => `${w.mesh} ${nameOf(w)}`;
const worst = (w: Workload): State => kinds.map((k) => w[k].state).sort((a, b) => states.indexOf(a) - states.indexOf(b))[0]!;
const wrong = (s: State) => states.indexOf(s) <= states.indexOf('cannot fail');

function textOf(w: Workload): string {
  return [w.mesh, nameOf(w), ...kinds.flatMap((k) => (w[k].findings ?? []).map((f) => `${f.instance} ${f.container ?? ''} ${f.probe ?? ''} ${f.reason ?? ''}`))].join(' ');
}

// Entry is a row with what it is searched and sorted by, which is kept while the row is the same.
interface Entry {
  row: Workload;
  id: string;
  text: string;
  rank: number;
}

const entries = new WeakMap<Workload, Entry>();

function entryOf(row: Workload): Entry {
  let entry = entries.get(row);
  if (!entry) {
    entry = {row, id: idOf(row), text: textOf(row), rank: states.indexOf(worst(row))};
    entries.set(row, entry);
  }
  return entry;
}

const byWorst = (a: Entry, b: Entry): number => a.rank - b.rank || (a.id < b.id ? -1 : 1);

export function Workloads() {
  const all = content('workloads')?.rows;
  const rows = useMemo(() => (all ?? []).map(entryOf).sort(byWorst), [all]);
  if (!all) return null;
  const state = param('state');
  const shown = rows
    .filter(({row, text}) => matches(text, {mesh: row.mesh, namespace: row.namespace ?? ''}))
    .map(({row}) => row)
    .filter((w) => !state || (state === 'anything wrong' ? wrong(worst(w)) : kinds.some((k) => w[k].state === state)));
  const [kind, id] = opened().split(/ (.*)/s, 2);
  const detail = all.find((w) => idOf(w) === id);
  const leftOut = content('workloads')?.leftOut;
  return (
    <>
      <ProblemList most={3} />
      <Filter
        choices={[
          {name: 'state', title: 'Verdict', values: ['anything wrong', ...states]},
          {name: 'namespace', title: 'Namespace', values: distinct(all.map((w) => w.namespace))},
          {name: 'mesh', title: 'Mesh', values: distinct(all.map((w) => w.mesh))},
        ]}
        shown={shown.length}
        of={all.length}
      />
      {leftOut && <p class="notice warn">{leftOut} more instances are not shown: the control plane sends at most 5000.</p>}
      <Table
        caption="Probes of workloads, those with what is wrong first"
        rows={shown}
        id={idOf}
        columns={[
          {
            title: 'Workload',
            class: 'name',
            cell: (w) => (
              <span title={`mesh ${w.mesh}`}>
                {w.namespace && (
                  <>
                    {w.namespace}/<wbr />
                  </>
                )}
                {w.name} {w.instances > 1 && <small>× {w.instances}</small>}
              </span>
            ),
          },
          ...kinds.map((k) => ({title: title(k), cell: (w: Workload) => <CellButton cell={w[k]} label={`${title(k)} of ${nameOf(w)}`} onOpen={() => open(`${k} ${idOf(w)}`)} />})),
        ]}
      />
      {detail && kinds.includes(kind as Kind) && <CellDetail workload={detail} kind={kind as Kind} />}
    </>
  );
}

const title = (kind: Kind) => kind[0]!.toUpperCase() + kind.slice(1);

function CellButton({cell, label, onOpen}: {cell: Cell; label: string; onOpen: () => void}) {
  if (cell.state === 'no probe') return <span class="faint">no probe</span>;
  return (
    <button type="button" class="cell" onClick={onOpen} title={label}>
      <StateMark state={cell.state} />{' '}
      <small>
        {cell.count !== cell.total && `${cell.count}/${cell.total} `}
        {cell.sinceAtLeast && 'at least '}
        <Ago at={cell.since} />
      </small>
      <span class="hidden">, {label}</span>
    </button>
  );
}

function CellDetail({workload, kind}: {workload: Workload; kind: Kind}) {
  const cell = workload[kind];
  return (
    <Detail title={`${title(kind)} of ${nameOf(workload)}`}>
      {cell.unreported && <p class="reason">Not reported: {cell.unreported}.</p>}
      <ul class="findings">
        {(cell.findings ?? []).map((f) => (
          <li key={`${f.instance} ${f.container} ${f.probe}`}>
            <h3>
              {f.instance}
              {f.container && `, container ${f.container}`}
            </h3>
            <p>
              <StateMark state={f.state} />{' '}
              {f.since ? (
                <>
                  for {f.sinceAtLeast && 'at least '}
                  <Ago at={f.since} />
                </>
              ) : (
                f.probe && !f.kubelet && f.state !== 'not reported' && 'since before the control plane started'
              )}
            </p>
            {f.reason && <p class="reason">{f.reason}</p>}
            <Changes finding={f} />
            {f.probe && (
              <dl>
                <dt>Probe as written</dt>
                <dd>
                  <code>{f.probe}</code>
                </dd>
                {f.kubelet && (
                  <>
                    <dt>The kubelet asks</dt>
                    <dd>
                      <code>{f.kubelet}</code>
                    </dd>
                  </>
                )}
                <dt>The agent asks</dt>
                <dd>
                  <code>{f.asks}</code>
                </dd>
              </dl>
            )}
            {f.do && f.state !== 'passing' && (
              <p class="do">
                <code>{f.do}</code>
              </p>
            )}
          </li>
        ))}
      </ul>
      {cell.leftOut && <p>{cell.leftOut} more</p>}
    </Detail>
  );
}
