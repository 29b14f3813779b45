//! The page about reductions shows the table the engine uses.

#[path = "../examples/reduction_table.rs"]
mod reduction_table;

#[test]
fn the_page_shows_the_table() {
    let page = include_str!("../../../docs/reductions.md");
    assert!(
        page.contains(&reduction_table::table()),
        "run the example reduction_table again"
    );
}
