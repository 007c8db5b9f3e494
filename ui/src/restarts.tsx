import {Mark} from './marks';
import {content} from './source';
import {Ago} from './time';

// Bar shows how much of a limit is used.
function Bar({count, limit}: {count: number; limit: number}) {
  return (
    <span class="bar">
      <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
        <rect class="all" width="100" height="10" />
        <rect class="used" width={Math.min(100, (100 * count) / limit)} height="10" />
      </svg>{' '}
      {count} of {limit}
    </span>
  );
}

export function Restarts() {
  const all = content('restarts');
  if (!all) return null;
  if (!all.kubernetes) return <p>Restarts are guarded on Kubernetes only: this control plane reads files.</p>;
  const round = all.round;
  return (
    <>
      {(all.notes ?? []).map((n) => (
        <p key={n} class="notice warn">
          {n}
        </p>
      ))}
      <dl class="facts">
        <dt>Guarded containers</dt>
        <dd>{all.guarded}</dd>
        {round && (
          <>
            <dt>Breaker</dt>
            <dd>
              <Mark level={round.open || round.namespace ? 'bad' : 'good'}>{round.open ? 'open' : round.namespace ? `open for namespace ${round.namespace}` : 'closed'}</Mark>
            </dd>
            <dt>Failed within a minute</dt>
            <dd>
              {all.guarded > 0 ? <Bar count={round.failed} limit={all.guarded} /> : round.failed}, of {round.workloads} {round.workloads === 1 ? 'workload' : 'workloads'}
            </dd>
            <dt>Decided by</dt>
            <dd>
              {round.replica}, <Ago at={round.at} /> ago, mode {round.mode}
            </dd>
          </>
        )}
      </dl>
      {all.rows.length === 0 ? (
        <p>No guarded container fails or restarts.</p>
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Restarts">
          <table class="stacked">
            <caption class="hidden">Guarded containers that fail or restart</caption>
            <thead>
              <tr>
                <th scope="col">Container</th>
                <th scope="col">State</th>
                <th scope="col">Budget</th>
                <th scope="col">Why</th>
              </tr>
            </thead>
            <tbody>
              {all.rows.map((r) => (
                <tr key={`${r.namespace}/${r.pod} ${r.container}`}>
                  <th scope="row">
                    {r.namespace}/{r.pod} {r.container}
                    <div class="faint">{r.workload}</div>
                  </th>
                  <td>
                    <Mark level={r.level}>{r.state}</Mark> <Ago at={r.since} />
                  </td>
                  <td>{r.limit ? <Bar count={r.count ?? 0} limit={r.limit} /> : ''}</td>
                  <td>
                    {r.why}
                    {r.failure && <p class="reason">{r.failure}</p>}
                    {r.needs && <p class="reason">{r.needs}</p>}
                    <p class="do">
                      <code>{r.do}</code>
                    </p>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {all.leftOut && <p>{all.leftOut} more: see sondectl restarts</p>}
    </>
  );
}
