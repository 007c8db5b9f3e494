import {Mark, levels} from './marks';
import {content} from './source';
import {Ago} from './time';
import type {Level} from './types';

const words: Record<Level, string> = {bad: 'failed', warn: 'warning', good: 'ok', unknown: 'not run yet', none: ''};

const versions = (all?: {version: string; count: number}[]) => (all ? all.map((v) => `${v.version || 'unknown'} (${v.count})`).join(', ') || 'none connected' : 'unknown');

export function ControlPlane() {
  const plane = content('controlplane');
  if (!plane) return null;
  return (
    <>
      {(plane.missing ?? []).map((replica) => (
        <p key={replica} class="notice warn">
          Replica {replica} is disconnected: what agents and Envoys have reported to it since is missing.
        </p>
      ))}
      <dl class="facts">
        <dt>Leader</dt>
        <dd>{plane.leader || 'not reported'}</dd>
        <dt>Agents</dt>
        <dd>{versions(plane.agents)}</dd>
        <dt>Envoys</dt>
        <dd>{versions(plane.envoys)}</dd>
      </dl>
      <div class="scroll" tabIndex={0} role="region" aria-label="Checks">
        <table>
          <caption>Checks of the replica that answers</caption>
          <thead>
            <tr>
              <th scope="col">Check</th>
              <th scope="col">State</th>
              <th scope="col">Since</th>
              <th scope="col">Reason</th>
            </tr>
          </thead>
          <tbody>
            {[...plane.checks].sort((a, b) => levels.indexOf(a.level) - levels.indexOf(b.level)).map((c) => (
              <tr key={`${c.group} ${c.name}`}>
                <th scope="row">
                  {c.group} {c.name}
                </th>
                <td>
                  <Mark level={c.level}>{words[c.level]}</Mark>
                </td>
                <td>
                  <Ago at={c.changes?.at(-1)?.at} />
                </td>
                <td class="reason">{c.reason}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
