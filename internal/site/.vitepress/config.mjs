// The site of the documentation: make site.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { defineConfig } from 'vitepress'
import { indented, links, pages, repository, sidebar, slug, stage } from './pages.mjs'

stage()

const icon = readFileSync(path.join(repository, 'lockhttp/assets/icon.svg'), 'utf8')

// words splits texts for the search. Chinese has no spaces: each two characters beside each other are a word.
// It runs in the browser as well, and so uses nothing around it.
function words(text) {
  return text.split(/[\n\r\p{Z}\p{P}]+/u).flatMap(word => word.match(/\p{Script=Han}+|\P{Script=Han}+/gu) ?? []).flatMap(part => {
    const signs = [...part]
    if (signs.length < 2 || !/\p{Script=Han}/u.test(part)) return [part]
    return signs.slice(1).map((sign, i) => signs[i] + sign)
  })
}

export default defineConfig({
  srcDir: pages,
  outDir: path.join(repository, '.site'),
  cacheDir: path.join(repository, 'internal/site/node_modules/.cache'),
  base: process.env.SITE_BASE || '/',
  title: 'lockstep',
  description: 'Named locks for Go programs that keep their data in MySQL or MariaDB',
  head: [['link', { rel: 'icon', type: 'image/svg+xml', href: 'data:image/svg+xml,' + encodeURIComponent(icon) }]],
  markdown: {
    anchor: { slugify: slug },
    attrs: { disable: true },
    theme: { light: 'github-light-high-contrast', dark: 'github-dark-high-contrast' },
    config(md) {
      md.core.ruler.disable('emoji')
      md.use(links).use(indented)
    }
  },
  locales: {
    root: {
      label: 'English',
      lang: 'en',
      themeConfig: {
        nav: [{ text: 'Documentation', link: '/docs/' }, { text: 'Changelog', link: '/CHANGELOG' }],
        sidebar: [
          ...sidebar('docs/README.md'),
          { text: 'Project', items: [{ text: 'Changelog', link: '/CHANGELOG' }, { text: 'Contributing', link: '/CONTRIBUTING' }, { text: 'Security', link: '/SECURITY' }] }
        ]
      }
    },
    'zh-CN': {
      label: '简体中文',
      lang: 'zh-CN',
      description: '为数据存放在 MySQL 或 MariaDB 中的 Go 程序提供命名锁',
      themeConfig: {
        nav: [{ text: '文档', link: '/zh-CN/docs/' }, { text: '更新日志（英文）', link: '/CHANGELOG' }],
        sidebar: sidebar('docs/zh-CN/README.md'),
        outline: { label: '本页目录', level: [2, 3] },
        docFooter: { prev: '上一页', next: '下一页' },
        darkModeSwitchLabel: '外观',
        lightModeSwitchTitle: '切换到浅色模式',
        darkModeSwitchTitle: '切换到深色模式',
        sidebarMenuLabel: '目录',
        returnToTopLabel: '回到顶部',
        langMenuLabel: '语言',
        skipToContentLabel: '跳到正文',
        notFound: { title: '没有这一页', quote: '链接可能已过时。', linkLabel: '回到首页', linkText: '回到首页' }
      }
    }
  },
  themeConfig: {
    // Not every page is there in Chinese; those that are lead to each other.
    i18nRouting: false,
    outline: [2, 3],
    socialLinks: [{ icon: 'github', link: 'https://github.com/dca00107/lockstep' }],
    search: {
      provider: 'local',
      options: {
        miniSearch: { options: { tokenize: words } },
        locales: {
          'zh-CN': {
            translations: {
              button: { buttonText: '搜索', buttonAriaLabel: '搜索' },
              modal: {
                displayDetails: '显示详情',
                resetButtonTitle: '清除',
                backButtonTitle: '关闭',
                noResultsText: '没有结果：',
                footer: { selectText: '打开', selectKeyAriaLabel: '回车', navigateText: '移动', navigateUpKeyAriaLabel: '向上', navigateDownKeyAriaLabel: '向下', closeText: '关闭', closeKeyAriaLabel: 'Esc' }
              }
            }
          }
        }
      }
    }
  }
})
