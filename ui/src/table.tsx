import {useEffect, useRef, useState} from 'preact/hooks';

export interface Column<Row> {
  title: string;
  // cell renders the content of a cell; the first column is the header of the row.
  cell: (row: Row) => preact.ComponentChildren;
  class?: string;
}

// ahead is how many rows are rendered beyond each edge of the window.
const ahead = 12;

// Table renders the rows that are in the window: each has the height that the style gives to --row.
export function Table<Row>({caption, columns, rows, id}: {caption: string; columns: Column<Row>[]; rows: Row[]; id: (row: Row) => string}) {
  const table = useRef<HTMLTableElement>(null);
  const [range, setRange] = useState({from: 0, to: 60});
  useEffect(() => {
    let frame = 0;
    const look = () => {
      frame = 0;
      const element = table.current;
      if (!element) return;
      const height = parseFloat(getComputedStyle(element).getPropertyValue('--row'));
      const top = -element.getBoundingClientRect().top;
      const from = Math.max(0, Math.floor(top / height) - ahead);
      const to = Math.min(rows.length, Math.ceil((top + innerHeight) / height) + ahead);
      setRange((old) => (old.from === from && old.to === to ? old : {from, to}));
    };
    const later = () => (frame ||= requestAnimationFrame(look));
    look();
    addEventListener('scroll', later, {passive: true});
    addEventListener('resize', later);
    return () => {
      cancelAnimationFrame(frame);
      removeEventListener('scroll', later);
      removeEventListener('resize', later);
    };
  }, [rows.length]);
  const shown = rows.slice(range.from, range.to);
  const [first, ...others] = columns;
  return (
    <table ref={table} class="fixed" aria-rowcount={rows.length + 1}>
      <caption class="hidden">{caption}</caption>
      <thead>
        <tr aria-rowindex={1}>
          {columns.map((c) => (
            <th scope="col" key={c.title} class={c.class}>
              {c.title}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        <Space rows={range.from} columns={columns.length} />
        {shown.map((row, i) => (
          <tr key={id(row)} aria-rowindex={range.from + i + 2}>
            <th scope="row" class={first!.class}>
              {first!.cell(row)}
            </th>
            {others.map((c) => (
              <td key={c.title} class={c.class}>
                {c.class === 'wide' ? <span>{c.cell(row)}</span> : c.cell(row)}
              </td>
            ))}
          </tr>
        ))}
        <Space rows={rows.length - Math.min(range.to, rows.length)} columns={columns.length} />
      </tbody>
    </table>
  );
}

// Space stands for rows that are not rendered.
function Space({rows, columns}: {rows: number; columns: number}) {
  if (rows <= 0) return null;
  return (
    <tr class="space" aria-hidden="true">
      <td colSpan={columns} style={{height: `calc(var(--row) * ${rows} * 1px)`}} />
    </tr>
  );
}
