//! Links of documents to files and headings of the project.

use std::path::Path;

use pulldown_cmark::{Event, Parser, Tag};

use crate::{documents, read, root};

/// What a document links to or shows, but for other sites.
fn links(text: &str) -> Vec<String> {
    let links = Parser::new(text).filter_map(|event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            Some(dest_url.to_string())
        }
        _ => None,
    });
    links.filter(|link| !link.contains("://")).collect()
}

/// How a heading is linked to.
fn anchor(heading: &str) -> String {
    let kept = |char: &char| char.is_alphanumeric() || " -_".contains(*char);
    heading.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}

/// Whether a link of a document leads somewhere.
fn leads(document: &str, link: &str) -> bool {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let folder = Path::new(document).parent().unwrap_or(Path::new(""));
    let target = if file.is_empty() { document.into() } else { folder.join(file) };
    let whole = root().join(&target);
    whole.exists() && (heading.is_empty() || has_heading(&read(&target.to_string_lossy()), heading))
}

fn has_heading(text: &str, wanted: &str) -> bool {
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    headings.any(|heading| anchor(heading.trim_start_matches('#').trim()) == wanted)
}

#[test]
fn every_link_target_exists() {
    let mut lost = Vec::new();
    let mut found = 0;
    for document in documents() {
        let links = links(&read(&document));
        found += links.len();
        let dead = links.into_iter().filter(|link| !leads(&document, link));
        lost.extend(dead.map(|link| format!("{document}: {link}")));
    }
    assert!(lost.is_empty(), "{lost:?}");
    assert!(found > 15, "{found} links");
}

#[test]
fn broken_links_are_detected() {
    assert!(leads("README.md", "docs/HTTP.md#headers") && leads("docs/HTTP.md", "#headers"));
    assert!(leads("docs/POLICY.md", "#llm-tokens-limit-requests-and-a-token-budget"));
    assert!(!leads("README.md", "docs/HTTP.md#footers") && !leads("README.md", "HTTP.md"));
}
