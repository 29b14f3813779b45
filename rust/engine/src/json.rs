//! A writer of JSON, as much of it as dumps need. Must not know what is dumped.

use std::fmt::{Display, Write};

/// One object as text.
pub(crate) fn object(fill: impl FnOnce(&mut Object<'_>)) -> String {
    let mut text = String::new();
    Object::write(&mut text, fill);
    text
}

fn quote(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c < ' ' => put(out, format_args!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

fn put(out: &mut String, value: impl Display) {
    // Writing to a string cannot fail.
    let _always_ok = write!(out, "{value}");
}

/// An object being written.
pub(crate) struct Object<'a> {
    out: &'a mut String,
    empty: bool,
}

impl Object<'_> {
    fn write(out: &mut String, fill: impl FnOnce(&mut Object<'_>)) {
        out.push('{');
        fill(&mut Object { out, empty: true });
        out.push('}');
    }

    fn key(&mut self, key: &str) -> &mut String {
        if !std::mem::take(&mut self.empty) {
            self.out.push(',');
        }
        quote(self.out, key);
        self.out.push(':');
        self.out
    }

    /// Text.
    pub(crate) fn text(&mut self, key: &str, value: &str) {
        quote(self.key(key), value);
    }

    /// A number or a bool.
    pub(crate) fn value(&mut self, key: &str, value: impl Display) {
        put(self.key(key), value);
    }

    /// A number, or null.
    pub(crate) fn optional(&mut self, key: &str, value: Option<impl Display>) {
        match value {
            Some(value) => self.value(key, value),
            None => self.value(key, "null"),
        }
    }

    /// An object inside.
    pub(crate) fn object(&mut self, key: &str, fill: impl FnOnce(&mut Object<'_>)) {
        Object::write(self.key(key), fill);
    }

    /// A list inside.
    pub(crate) fn list(&mut self, key: &str, fill: impl FnOnce(&mut List<'_>)) {
        List::write(self.key(key), fill);
    }
}

/// A list being written.
pub(crate) struct List<'a> {
    out: &'a mut String,
    empty: bool,
}

impl List<'_> {
    fn write(out: &mut String, fill: impl FnOnce(&mut List<'_>)) {
        out.push('[');
        fill(&mut List { out, empty: true });
        out.push(']');
    }

    fn next(&mut self) -> &mut String {
        if !std::mem::take(&mut self.empty) {
            self.out.push(',');
        }
        self.out
    }

    /// Text.
    pub(crate) fn text(&mut self, value: &str) {
        quote(self.next(), value);
    }

    /// A number or a bool.
    pub(crate) fn value(&mut self, value: impl Display) {
        put(self.next(), value);
    }

    /// An object inside.
    pub(crate) fn object(&mut self, fill: impl FnOnce(&mut Object<'_>)) {
        Object::write(self.next(), fill);
    }

    /// A list inside.
    pub(crate) fn list(&mut self, fill: impl FnOnce(&mut List<'_>)) {
        List::write(self.next(), fill);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_quotes_and_nesting() {
        let text = object(|o| {
            o.text("name", "a\"b\\c\n\u{1}é");
            o.value("n", 3);
            o.optional("none", None::<u8>);
            o.list("list", |l| {
                l.text("x");
                l.value(true);
                l.list(|_| {});
                l.object(|o| o.value("k", -1));
            });
            o.object("empty", |_| {});
        });
        assert_eq!(
            text,
            r#"{"name":"a\"b\\c\n\u0001é","n":3,"none":null,"list":["x",true,[],{"k":-1}],"empty":{}}"#
        );
    }
}
