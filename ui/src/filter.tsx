import {param, setParams} from './route';

export interface Choice {
  name: string;
  title: string;
  values: string[];
}

// Filter has a text and choices, which the address keeps.
export function Filter({choices, shown, of}: {choices: Choice[]; shown: number; of: number}) {
  return (
    <form class="filter" role="search" onSubmit={(event) => event.preventDefault()}>
      <label>
        <span>Text</span>
        <input type="search" value={param('q')} onInput={(event) => setParams({q: event.currentTarget.value})} />
      </label>
      {choices
        .filter((c) => c.values.length > 1 || param(c.name))
        .map((c) => (
          <label key={c.name}>
            <span>{c.title}</span>
            <select value={param(c.name)} onChange={(event) => setParams({[c.name]: event.currentTarget.value})}>
              <option value="">all</option>
              {[...new Set([...c.values, param(c.name)])]
                .filter((v) => v)
                .sort()
                .map((v) => (
                  <option key={v} value={v}>
                    {v}
                  </option>
                ))}
            </select>
          </label>
        ))}
      <p class="count">{shown === of ? `${of}` : `${shown} of ${of}`}</p>
    </form>
  );
}

// matches reports whether a text has what is searched for, and each chosen value is the row's.
export function matches(text: string, values: Record<string, string>): boolean {
  const q = param('q').toLowerCase();
  return (!q || text.toLowerCase().includes(q)) && Object.entries(values).every(([name, value]) => !param(name) || param(name) === value);
}

export const distinct = (values: (string | undefined)[]): string[] => [...new Set(values.filter((v): v is string => !!v))];
