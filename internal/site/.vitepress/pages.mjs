// Puts the pages of the repository where VitePress makes a site of them, and leads their links there.
import { cpSync, existsSync, readFileSync, readdirSync, rmSync, statSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

export const repository = fileURLToPath(new URL('../../..', import.meta.url))
export const pages = path.join(repository, 'internal/site/.pages')
const source = 'https://github.com/dca00107/lockstep'

// place says where a file of the repository stands on the site, and is undefined for one that is no part of it.
function place(file) {
  if (/^(docs\/.*|[^/]*)\.md$/.test(file)) {
    return file.replace(/^docs\/zh-CN\//, 'zh-CN/docs/').replace(/^README\.zh-CN\.md$/, 'zh-CN/index.md').replace(/(^|\/)README\.md$/, '$1index.md')
  }
  return /^docs\/.*\.(svg|png)$/.test(file) ? file : undefined
}

const files = [...readdirSync(repository), ...readdirSync(path.join(repository, 'docs'), { recursive: true }).map(file => `docs/${file}`)]
const places = new Map(files.filter(place).map(file => [file, place(file)]))
const sources = new Map([...places].map(([file, at]) => [at, file]))

// stage copies pages and pictures, which are not kept.
export function stage() {
  rmSync(pages, { recursive: true, force: true })
  for (const [file, at] of places) cpSync(path.join(repository, file), path.join(pages, at))
}

// lead returns where a link of a page leads on the site: to another page or picture of it, or to the repository.
function lead(page, link, picture) {
  if (/^([a-z]+:|#)/.test(link)) return link
  const [target, anchor] = link.split('#')
  const file = path.posix.join(path.posix.dirname(sources.get(page)), decodeURI(target)).replace(/\/$/, '')
  const at = places.get(file)
  if (at && (picture || at.endsWith('.md'))) {
    const relative = path.posix.relative(path.posix.dirname(page), at)
    return (relative.startsWith('.') ? relative : `./${relative}`) + (anchor ? `#${anchor}` : '')
  }
  const found = path.join(repository, file)
  if (!existsSync(found)) throw new Error(`${sources.get(page)} leads to ${link}, which doesn't exist`)
  return `${source}/${statSync(found).isDirectory() ? 'tree' : 'blob'}/main/${file}` + (anchor ? `#${anchor}` : '')
}

// links is a plugin of markdown-it, which leads links and drops badges: the site loads nothing from elsewhere.
export function links(md) {
  md.core.ruler.push('lockstep_links', state => {
    const page = path.posix.relative(pages, state.env.realPath ?? state.env.path)
    for (const inline of state.tokens.filter(token => token.type === 'inline')) {
      if (inline.children.some(badge)) inline.children = []
      for (const token of inline.children) {
        const name = { link_open: 'href', image: 'src' }[token.type]
        if (name) token.attrSet(name, lead(page, token.attrGet(name), name === 'src'))
      }
    }
  })
}

// indented is a plugin of markdown-it, which shows indented code as fenced code is shown.
export function indented(md) {
  md.core.ruler.push('lockstep_indented', state => {
    for (const token of state.tokens.filter(token => token.type === 'code_block')) token.type = 'fence'
  })
}

const badge = token => token.type === 'image' && /^https?:/.test(token.attrGet('src'))

// slug names a heading as the repository's host does.
export const slug = text => text.trim().toLowerCase().replace(/[^\p{L}\p{N}\s_-]/gu, '').replaceAll(' ', '-')

// sidebar is what a page of contents lists, a group for each heading.
export function sidebar(contents) {
  const page = places.get(contents)
  const groups = []
  for (const line of readFileSync(path.join(repository, contents), 'utf8').split('\n')) {
    const heading = line.match(/^## ([^:：]+)/)
    if (heading) groups.push({ text: heading[1], items: [] })
    if (!line.startsWith('- ')) continue
    for (const [, text, link] of line.matchAll(/\[([^\]]+)\]\(([^)]+)\)/g)) {
      const to = lead(page, link)
      if (to.startsWith('http')) continue
      groups.at(-1).items.push({ text: text[0].toUpperCase() + text.slice(1), link: path.posix.join('/', path.posix.dirname(page), to) })
    }
  }
  return groups
}
